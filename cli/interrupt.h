// Ctrl-C: the first asks the run to stop at its next safe point, so that nothing half-written stays; the second ends
// the process at once.
#pragma once

namespace zoetrope::cli {

void catch_interrupts();  // SIGINT and SIGTERM
bool interrupted();

}  // namespace zoetrope::cli
