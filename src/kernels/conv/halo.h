// How a model whose frames are split by rows gets the rows next to its own. The code that computes knows no ranks: it
// is handed one of these.
#pragma once

#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

namespace zoetrope::kernels {

// Of latent rows [0, H) a part owns a contiguous range, upper parts first; at a stage that has s rows for one of the
// latent it owns s times that range (and the last part what is left over). Calls are collective and in the same order
// on every rank.
class HaloExchange {
 public:
  virtual ~HaloExchange() = default;
  virtual int parts() const = 0;
  virtual int part() const = 0;
  // Sends the first and last row of `rows` to the parts that lie above and below and takes theirs: `above` gets the
  // last row of the part above, `below` the first of the part below. All are [W, C] of one dtype, contiguous; at the
  // border of the picture nothing is written.
  virtual void exchange(const TensorView& first, const TensorView& last, const TensorView& above,
                        const TensorView& below) = 0;
  // all [rows of all parts, …] from mine [own rows, …]: for attention over the whole frame. `own` is the range of mine.
  virtual void gather_rows(const TensorView& mine, IndexRange own, const TensorView& all) = 0;
};

// The split: the exchange and the latent rows of this part, at least one. Without an exchange: the whole picture.
struct RowSplit {
  HaloExchange* exchange = nullptr;
  IndexRange rows;
};

}  // namespace zoetrope::kernels
