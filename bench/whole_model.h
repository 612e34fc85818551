// What `bench model`, `vae` and `text` do alike: a model and a stream whose spans are kept, a pass that is checked and
// timed, a table of passes and one of what their time went into. Base of the cases, which add their own columns and
// their pass.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/operations.h"
#include "bench/published.h"

namespace zoetrope::bench {

class WholeModel {
 public:
  WholeModel(const WholeModel&) = delete;
  WholeModel& operator=(const WholeModel&) = delete;

 protected:
  // `own` are the columns before the common ones, `key` of them those that name a row in the table of operations.
  WholeModel(std::string name, const PublishedSettings& published, const Progress& progress, Outcome& outcome,
             std::vector<Column> own, std::vector<Column> key);

  void say(const std::string& what) const;

  // Times `pass`, after its first run was checked: by `check`, and where that has passed by `look`, which says what is
  // wrong with the timed result itself (empty: nothing).
  Timed time(DType dtype, double flop, const std::function<void()>& pass, const std::function<Verdict()>& check,
             const std::function<std::string()>& look, Verdict& verdict);

  // A row of the case's own cells, the common ones filled in; other cells are empty.
  std::vector<Cell> row_of(std::vector<Cell> own, const Timed& timed, double flop, Part part, DType dtype,
                           const Verdict& verdict) const;
  void add(std::vector<Cell> row, const Timed& timed, const std::vector<Cell>& key);

  struct Titles {
    const char *passes, *note, *operations;
  };
  std::vector<Section> sections(const Titles& titles);  // both tables; they are gone then

  Published model_;
  int threads_;
  trace::Trace trace_;
  Stream stream_;
  Table table_;

 private:
  std::string name_;
  int64_t repeat_;
  const Progress& progress_;
  Outcome& outcome_;
  Table operations_;
};

}  // namespace zoetrope::bench
