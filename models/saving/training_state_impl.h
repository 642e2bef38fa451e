#ifndef HOTROW_MODELS_SAVING_TRAINING_STATE_IMPL_H_
#define HOTROW_MODELS_SAVING_TRAINING_STATE_IMPL_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/json/json_members_impl.h"
#include "models/saving/training_state.h"
#include "ops/update/step_history.h"

namespace hotrow {

// The member `training` of a manifest.
nlohmann::ordered_json TrainingToJson(const TrainingState& state);
// path: of the object, empty where it is a text by itself. *wrong as in JsonMembers.
TrainingState ParseTraining(const nlohmann::ordered_json& json, const std::string& path,
                            std::string* wrong);

// A list of pairs of a step and a factor.
nlohmann::ordered_json LearningRatesToJson(const std::vector<LearningRateRun>& runs);
std::vector<LearningRateRun> ParseLearningRates(JsonMembers& members, const char* name);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_TRAINING_STATE_IMPL_H_
