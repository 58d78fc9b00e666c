// What the optimiser must and must not inline.
#pragma once

#define SOFTWOOD_INLINE inline __attribute__((always_inline))
// For loops that need all registers: inside a large function GCC keeps some of their values in memory.
#define SOFTWOOD_NOINLINE inline __attribute__((noinline))
