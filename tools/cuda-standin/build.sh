#!/bin/sh
# Makes FOLDER/libcuda.so.1 of the kernels as they are, and cuBLAS in the same file: build.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kernels=$here/../../src/device/kernels
mkdir -p "$1"
# KERNEL(name, whether its threads meet) for each kernel.
list=$(cat "$kernels"/*.cu | awk '
  function tell() { if (name) printf "KERNEL(%s, %s)", name, meets }
  /__global__ void/ { tell(); name = $0; sub(/.*void /, "", name); sub(/\(.*/, "", name); meets = "false" }
  /__syncthreads/ { meets = "true" }
  END { tell() }')
# Under another name first: a test may load the one that is there.
out=$1/libcuda.so.1
g++ -std=c++20 -O2 -g -fPIC -shared -Wall -Wextra -Wno-unused-parameter -DKERNELS="$list" \
  -I"$kernels" -I"$here" -o "$out.$$" "$here"/*.cpp -lpthread
mv "$out.$$" "$out"
ln -sf libcuda.so.1 "$1/libcublas.so.12"
