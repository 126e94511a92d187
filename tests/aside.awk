# Prints a test run without the output of passed tests, one line a test binary with its counts and its time. Writes the tests
# that stood aside, with their reasons, to one file and the run's counts of passed, failed and skipped tests to another.
#
#   cargo test -- --show-output 2>&1 | awk -v reasons=FILE -v counts=FILE -f tests/aside.awk
/^ +(Compiling|Downloading|Downloaded|Finished|Fresh|Updating|Locking|Blocking) / { next }
/^ +Running / || /^ +Doc-tests / {
  binary = $NF
  sub(/^.*\//, "", binary)
  sub(/-[0-9a-f]+\)$/, "", binary)
  next
}
/^running [0-9]+ tests?$/ || /^test .* \.\.\. (ok|ignored)$/ || /^test .* has been running for over / { next }
/^successes:$/ { passed = 1; next }
/^failures:$/ || /^test result: / { passed = 0 }
/^test result: / {
  done += $4; broken += $6; ignored += $8
  if ($4 + $6 + $8 > 0) { printf "%-24s %5d passed %3d failed %9s\n", binary, $4, $6, $NF; fflush() }
  next
}
passed && /^---- .* stdout ----$/ { test = $2; next }
passed && match($0, /st(oo|an)ds? aside: /) {
  print test ": " substr($0, RSTART + RLENGTH) >> reasons
  if (!(test in aside)) { aside[test]; skipped++ }
  next
}
passed || /^$/ { next }
{ print; fflush() }
END { printf "%d %d %d\n", done - skipped, broken, skipped + ignored >> counts }
