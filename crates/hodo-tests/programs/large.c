// Functions in two places, farther apart than all jumps of some processors reach. The linker is told where the section
// `.far` is; see `large.rs`. If its functions begin with landing instructions, it is guarded.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEAR __attribute__((noipa))
#define FAR __attribute__((noipa, section(".far")))

NEAR int near_leaf(int n) { return n * 3 + 1; }

FAR int far_leaf(int n) { return n * 5 + 1; }

// It begins with a branch.
FAR long far_sum(long *numbers, int count) {
    if (!numbers)
        return -1;
    long sum = 0;
    for (int i = 0; i < count; i++)
        sum += numbers[i];
    return sum;
}

FAR int far_even(int n);
FAR int far_odd(int n) { return far_even(n - 1) + 1; }
FAR int far_even(int n) { return n ? far_odd(n) + 1 : 0; }

// It calls functions in both places, and ends with a jump.
FAR int far_both(int n) {
    n += near_leaf(n) + far_leaf(n);
    return far_leaf(n + 1);
}

// It calls functions of libraries.
FAR char *far_copy(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : 0;
}

static jmp_buf place;

FAR void far_throw(int n) { longjmp(place, n); }

FAR int far_compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

NEAR int near_all(int n) {
    long numbers[] = {n, 2, 3, 4};
    int sum = far_sum(numbers, 4) + far_sum(NULL, 4) + far_even(n) + far_both(n);
    int sorted[] = {9, n, 7};
    // A library calls it.
    qsort(sorted, 3, sizeof *sorted, far_compare);
    char *copy = far_copy("far away");
    sum += sorted[0] + (copy ? strlen(copy) : 0);
    free(copy);
    if (!setjmp(place))
        far_throw(1);
    return sum;
}

#ifdef __ARM_FEATURE_BTI_DEFAULT
__attribute__((constructor)) static void guard(void) {
    enum { BTI = 0x10 };
    long page = sysconf(_SC_PAGESIZE);
    char *start = (char *)((unsigned long)far_leaf & -page);
    if (mprotect(start, page, PROT_READ | PROT_EXEC | BTI)) {
        perror("the far functions are not guarded");
        exit(1);
    }
}
#endif

int main(void) {
    int sum = 0;
    for (int i = 0; i < 10; i++)
        sum += near_all(i);
    printf("%d\n", sum);
    return 0;
}
