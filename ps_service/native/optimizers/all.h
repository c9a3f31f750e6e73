// The list of optimizers. Adding one touches this file and its own header, nothing else.
#pragma once

#include <tuple>

#include "adagrad.h"
#include "adam.h"
#include "adamw.h"
#include "amsgrad.h"
#include "ftrl.h"
#include "group_ftrl.h"
#include "momentum.h"
#include "rmsprop.h"
#include "rowwise_adagrad.h"
#include "sgd.h"

namespace embermesh {

using AllOptimizers = std::tuple<Sgd, Momentum, Adagrad, RowwiseAdagrad, Adam, AdamW, AmsGrad,
                                 RmsProp, Ftrl, GroupFtrl>;

}  // namespace embermesh
