// SPDX-License-Identifier: Apache-2.0
//
// Kernels with one planted bug each, and without it, for tests of the emulator.
// `broken` picks the bug. All return what TORPOR_LAUNCH does.

#ifndef TORPOR_TESTS_KERNELS_CUDA_EMULATION_KERNELS_H_
#define TORPOR_TESTS_KERNELS_CUDA_EMULATION_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace torpor::kernels::planted {

// cuda_emulation_memory_kernels.cu ------------------------------------------

// y[i] = 2 x[i], 64 threads a block. Broken: i may be n.
int Double(const float* x, float* y, int n, bool broken);
// y[i] = x[i + 1] - x[i] for i < n - 1, y[n - 1] = 0. Broken: reads x[-1] too.
int Difference(const float* x, float* y, int n, bool broken);
// y[i] = x[n - 1 - i], n = 96, by shared memory. Broken: writes one past it.
int ReverseShared(const float* x, float* y, bool broken);
// The same by dynamic shared memory of `shared_bytes`; 96 floats are needed.
int ReverseDynamic(const float* x, float* y, size_t shared_bytes);
// y[t] = t, by way of a pointer to a local variable. Broken: lane 0's pointer.
int OwnStack(float* y, bool broken);
// y[t] = a constant. Broken: changes the constant first.
int Constant(int* y, bool broken);
// Sums of what a block wrote to shared memory. Broken: thread 5 writes nothing.
int SumOfWritten(float* y, bool broken);
// The first n bytes of x to y and 0 to the next n, by one thread's memcpy and
// memset.
int CopyBytes(const uint8_t* x, uint8_t* y, int n);
// y[i] = y[i] + 1 (broken), or 1.
int Increment(float* y, int n, bool broken);
// Copies n 4-byte words in vectors of `lanes` (1, 2, 4).
int CopyVectors(const uint32_t* x, uint32_t* y, int n, int lanes);
// Each quartet (a, b, c, d) of 64 floats becomes (a + b, b + a + d, c, d).
int AddLanes(const float* x, float* y);
// Reads one float from byte `offset` of x.
int ReadFloatAt(const uint8_t* x, float* y, int offset);
enum class Bytes {
  kSound,      // thread t of 64 writes byte t
  kOneByte,    // thread 9 writes byte 8
  kSameLanes,  // thread t + 32 writes byte t
};
int WriteBytes(uint8_t* y, Bytes kind);
// Thread t < 32 writes word t of shared memory, thread t + 32 reads its byte 2.
// Broken: no barrier between.
int ReadBytesOfWords(uint8_t* y, bool broken);
// y[t] = t for 16 threads; with 4008 and with 4104 bytes of arguments.
int ManyArguments(int* y);
int TooManyArguments(int* y);

// cuda_emulation_sync_kernels.cu --------------------------------------------

// y[t] = x[n - 1 - t] of 96 threads. Broken: no barrier between.
int ReverseBlock(const float* x, float* y, bool broken);
// The same in warps of 32 with __syncwarp. Broken: without.
int ReverseWarps(const float* x, float* y, bool broken);
// Column sums of x [n_tiles, 96] over a shared tile, in nested loops. Broken:
// the tile is refilled without a barrier after its use.
int TileSums(const float* x, float* y, int n_tiles, bool broken);
// All of 96 threads read one shared float, then thread `writer` writes it.
// Broken: no barrier between.
int ReadThenWrite(float* y, int writer, bool broken);
// Each block reads x[0] into y[block]; broken: the last block then writes x[0].
int ReadFirst(int* x, int* y, int n_blocks, bool broken);
// y[block] = block. Broken: y[0].
int OnePerBlock(int* y, int n_blocks, bool broken);
// y[block + 1] = y[block] + 1 (broken), or x[block] + 1.
int Chain(const int* x, int* y, int n_blocks, bool broken);
// *y += each x, atomically. Broken: thread 0 then reads *y into y[1].
int AtomicSum(const int* x, int* y, int n_blocks, bool broken);
// The same as floats of whole numbers, with maxima and minima in y[1], y[2].
int AtomicFloats(const float* x, float* y, int* extremes, int n_blocks);
// Takes the place of each value below 100 once: y[x] counts by compare and
// swap.
int CompareAndSwap(unsigned* y, int n_blocks);

enum class Barrier { kSound, kSomeExit, kTwoPlaces };
int Barriers(float* y, Barrier kind);

enum class Warp {
  kSound,         // halves of a warp shuffle with their own masks
  kExited,        // lanes 16.. return before a shuffle of all
  kLaterExit,     // the same, when others wait already
  kAtBarrier,     // lanes 16.. wait in __syncthreads instead
  kOtherMask,     // lanes 16.. name another mask
  kNotInMask,     // the caller is not in its own mask
  kPastBlockEnd,  // a block of 40 shuffles with all 32 lanes
};
int Warps(int* y, Warp kind);

// y[t] = what each of the warp operations gave thread t, 8 values a thread.
int WarpResults(int* y);

// order[k] = the k-th thread that ran, over n_blocks of 96.
int RecordOrder(int* order, int* next, int n_blocks);

// A kernel bound to 96 threads, launched with `n_threads`.
int Launch96(int* y, int n_threads);
int LaunchSized(int* y, unsigned grid_y, unsigned block_z, size_t shared_bytes);

// Transposes [kRows, 8] of T by a shared array of a template's size.
int TransposeBytes(const uint8_t* x, uint8_t* y);
int TransposeDoubles(const double* x, double* y);

}  // namespace torpor::kernels::planted

#endif  // TORPOR_TESTS_KERNELS_CUDA_EMULATION_KERNELS_H_
