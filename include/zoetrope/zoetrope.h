// Everything public at once.
#pragma once

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"
#include "zoetrope/error.h"
#include "zoetrope/model.h"
#include "zoetrope/mpi.h"
#include "zoetrope/sampling.h"
#include "zoetrope/tensor.h"
#include "zoetrope/trace.h"
#include "zoetrope/version.h"
#include "zoetrope/video.h"
