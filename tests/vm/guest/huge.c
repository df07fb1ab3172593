/* huge COUNT LOG2: maps pages of 2**LOG2 bytes one by one and touches each. Prints how many it got;
   ends with the errno of the first one that was refused. A page beyond a limit on use, and not on
   reservation, would end it by SIGBUS. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1, log2 = argc > 2 ? atoi(argv[2]) : 21, got = 0, code = 0;
    for (; got < count; got++) {
        char *page = mmap(NULL, 1UL << log2, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | log2 << MAP_HUGE_SHIFT, -1, 0);
        if (page == MAP_FAILED) { code = errno; break; }
        *page = 1;
    }
    printf("%d\n", got);
    return code;
}
