#include "ops/unique.h"
