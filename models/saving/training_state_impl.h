#ifndef HOTROW_MODELS_SAVING_TRAINING_STATE_IMPL_H_
#define HOTROW_MODELS_SAVING_TRAINING_STATE_IMPL_H_

#include <nlohmann/json.hpp>
#include <string>

#include "models/saving/training_state.h"

namespace hotrow {

// The member `training` of a manifest.
nlohmann::ordered_json TrainingToJson(const TrainingState& state);
// path: of the object, empty where it is a text of its own. *wrong as in JsonMembers.
TrainingState ParseTraining(const nlohmann::ordered_json& json, const std::string& path,
                            std::string* wrong);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_TRAINING_STATE_IMPL_H_
