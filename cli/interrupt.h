// Signals that end a run. All remove what is not finished, so that nothing half-written stays. INT, TERM, HUP and QUIT
// then end the process; where a command asked for it, the first of them only stops the run at its next safe point.
#pragma once

namespace zoetrope::cli {

// For the whole program. What was ignored when it began stays so (nohup). A file that grows beyond its limit is an
// error of the write, a pipe whose reader is gone ends the process, and a rank of an MPI job ends with what started it.
void catch_signals();
// For commands that look at interrupted() every now and then.
void stop_at_safe_points();
bool interrupted();
int interrupting_signal();  // the first, or 0

}  // namespace zoetrope::cli
