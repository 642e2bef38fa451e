#include "ops/partition.h"
