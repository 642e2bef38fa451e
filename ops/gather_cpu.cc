#include "ops/gather.h"
