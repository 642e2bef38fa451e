#include "ops/row_layout.h"
