// The list of optimizers. Adding one touches this file and its own header, nothing else.
#pragma once

#include <tuple>

#include "adagrad.h"
#include "adam.h"
#include "ftrl.h"
#include "sgd.h"

namespace embermesh {

using AllOptimizers = std::tuple<Sgd, Adagrad, Adam, Ftrl>;

}  // namespace embermesh
