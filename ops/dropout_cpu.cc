#include "ops/dropout.h"
