# Shows what tests say but for what passing ones said, and notes in a file which of those stood aside, and why.
#
#   cargo test --quiet -- --show-output | awk -v reasons=FILE -f tests/aside.awk
/^successes:$/ { passed = 1; next }
/^failures:$/ || /^test result: / { passed = 0 }
passed && /^---- .* stdout ----$/ { test = $2; next }
passed && match($0, /st(oo|an)ds? aside: /) { print test ": " substr($0, RSTART + RLENGTH) > reasons }
passed { next }
{ print; fflush() }
