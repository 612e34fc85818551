// Ctrl-C: the first removes what is not finished and asks the run to stop at its next safe point; the second ends the
// process at once. Neither leaves anything half-written.
#pragma once

namespace zoetrope::cli {

void catch_interrupts();  // SIGINT and SIGTERM
bool interrupted();

}  // namespace zoetrope::cli
