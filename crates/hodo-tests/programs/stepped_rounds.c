/* Steps itself through repeated string instructions: there is one step for each round. */
#include <signal.h>
#include <stdio.h>

static volatile int hits;
static void count(int signal) { (void)signal; hits++; }

int main(void) {
    char from[6] = "round", to[16] = "";
    char *source = from, *target = to;
    long left = sizeof from;
    signal(SIGTRAP, count);
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq; rep movsb; mov $3, %%ecx; repne scasb; nop;"
                     "pushfq; andq $~0x100, (%%rsp); popfq"
                     : "+S"(source), "+D"(target), "+c"(left) : "a"(1) : "memory", "cc");
    printf("%d steps, %s\n", hits, to);
    return 0;
}
