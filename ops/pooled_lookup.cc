#include "ops/pooled_lookup.h"
