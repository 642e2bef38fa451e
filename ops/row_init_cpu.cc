#include "ops/row_init.h"
