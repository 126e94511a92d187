# Prints a test run without the output of passed tests. Writes the tests that stood aside, with their reasons, to one file
# and the run's counts of passed, failed and skipped tests to another.
#
#   cargo test --quiet -- --show-output | awk -v reasons=FILE -v counts=FILE -f tests/aside.awk
/^successes:$/ { passed = 1; next }
/^failures:$/ || /^test result: / { passed = 0 }
/^test result: / { done += $4; broken += $6; ignored += $8 }
passed && /^---- .* stdout ----$/ { test = $2; next }
passed && match($0, /st(oo|an)ds? aside: /) {
  print test ": " substr($0, RSTART + RLENGTH) > reasons
  if (!(test in aside)) { aside[test]; skipped++ }
  next
}
passed { next }
{ print; fflush() }
END { printf "%d %d %d\n", done - skipped, broken, skipped + ignored >> counts }
