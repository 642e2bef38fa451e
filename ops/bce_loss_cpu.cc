#include "ops/bce_loss.h"
