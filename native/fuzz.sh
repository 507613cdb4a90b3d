#!/usr/bin/env bash
# Fuzzes the compiled reader with AFL++, guided by the branches that an input reaches: native/fuzz.sh FOLDER EXECUTIONS.
# The folder keeps what was found; a folder that exists is continued. Fails if an input crashes the reader or takes a minute.
# It needs cargo, and afl-fuzz (Debian's package afl++).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$1 executions=$2
python=${PYTHON:-.venv/bin/python}

for tool in cargo afl-fuzz; do
  command -v "$tool" >/dev/null || { echo "no $tool here: the reader is not fuzzed"; exit 0; }
done
runtime=$(find /usr/lib/afl /usr/local/lib/afl -name afl-compiler-rt.o -print -quit 2>/dev/null)
[[ $runtime ]] || { echo "AFL++'s afl-compiler-rt.o is not here: the reader is not fuzzed"; exit 0; }

# The passes that cargo-afl uses; checks of overflow and a panic that ends the process are what makes a finding.
flags=(-Cdebug-assertions -Coverflow-checks -Copt-level=3 -Ccodegen-units=1 -Clto=no -Cpanic=abort -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-trace-pc-guard "-Clink-arg=$runtime")
# SANITIZER=address also finds reads and writes outside of buffers, at half the speed. Its option counts as unstable in rustc.
if [[ ${SANITIZER:-} ]]; then
  flags+=("-Zsanitizer=$SANITIZER")
  export RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=abort_on_error=1:symbolize=0:detect_leaks=0
fi
RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR=native/target/afl CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_PANIC=abort \
  cargo build --release --offline --locked --manifest-path native/Cargo.toml --example afl --features afl \
  --target "$(rustc -vV | sed -n 's/host: //p')" || { echo "this rustc does not build what AFL++ needs: the reader is not fuzzed"; exit 0; }
program=$(find native/target/afl/*/release/examples -name afl -type f)

[[ -d $folder/pieces ]] || "$python" -m tests.ingest.native_cases pieces "$folder"
AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_SKIP_CPUFREQ=1 AFL_NO_AFFINITY=1 AFL_NO_UI=1 AFL_AUTORESUME=1 \
  afl-fuzz -i "$folder/pieces" -o "$folder/found" -E "$executions" -t 60000 -- "$program" "$folder/description" >"$folder/log" ||
  { tail -20 "$folder/log"; exit 1; }
grep -E 'execs_done|edges_found|corpus_count|saved_crashes|saved_hangs' "$folder/found/default/fuzzer_stats"
[[ -z $(find "$folder/found" -path '*/crashes*/id:*' -o -path '*/hangs/id:*') ]] || { echo "findings in $folder/found"; exit 1; }
