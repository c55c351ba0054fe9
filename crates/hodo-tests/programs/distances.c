// Jumps to labels by their distances from another label: one is among the first instructions of the function.
#include <stdio.h>

__attribute__((noipa)) int run(const unsigned char *code, int sum) {
    static const int table[] = {&&add - &&end, &&sub - &&end, &&end - &&end};
    __asm__ volatile("" : "+r"(sum));
add:
    sum += 3;
    goto *(&&end + table[*code++]);
sub:
    sum -= 1;
    goto *(&&end + table[*code++]);
end:
    return sum;
}

int main(void) {
    const unsigned char code[] = {0, 1, 0, 0, 1, 2};
    long sum = 0;
    for (int i = 0; i < 1000; i++) sum += run(code, i);
    printf("%ld\n", sum);
    return 0;
}
