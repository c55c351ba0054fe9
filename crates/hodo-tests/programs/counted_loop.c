// Executes some billion instructions in a loop.
#include <stdio.h>

int main(void)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < 500000000; i++)
        __asm__ volatile("lea (%0, %0, 2), %0\n\tadd %1, %0" : "+r"(sum) : "r"(i));
    printf("%u\n", sum);
    return 3;
}
