#include "ops/dot_interaction.h"
