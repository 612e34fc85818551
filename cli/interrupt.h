// Signals that end a run. All remove unfinished files. INT, TERM, HUP and QUIT then end the process; for commands that
// call stop_at_safe_points(), the first of them, also where it comes twice within half a second, only stops the run at
// its next safe point.
#pragma once

namespace zoetrope::cli {

// For the whole program. Signals that were ignored at its start stay ignored (nohup). A file that exceeds its size
// limit is an error of the write, a pipe without a reader ends the process, and a rank of an MPI job ends with its
// launcher. A mapped file that is cut off is named before the process ends.
void catch_signals();
// For commands that check interrupted() regularly.
void stop_at_safe_points();
bool interrupted();
int interrupting_signal();  // the first, or 0

}  // namespace zoetrope::cli
