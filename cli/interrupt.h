// Signals that end a run, crashes too. All remove unfinished files. INT, TERM, HUP, QUIT, and what batch systems send
// before a job's time is over (USR1, USR2, ALRM, XCPU), then end the process; for commands that call
// stop_at_safe_points(), the first of them, also where it comes twice within half a second, only stops the run at its
// next safe point.
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
