// Passes long buffers, lists and strings to the kernel, and gets one back.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char text[6000];
static char back[6000];

int main(void) {
    for (unsigned i = 0; i < sizeof text; i++)
        text[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[(i + i / 36) % 36];
    int null = open("/dev/null", O_WRONLY), pipes[2];
    if (null < 0 || pipe(pipes))
        return 1;
    long sum = 0;
    for (int i = 0; i < 200; i++)
        sum += write(null, text + i, 4000 + i);
    sum += write(null, text, 6000);
    sum += write(null, "\0008\0007\0019", 6);
    sum += write(pipes[1], text, 5000);
    sum += read(pipes[0], back, 5000);
    struct iovec parts[3] = {{text, 1500}, {text + 1500, 2500}, {text + 4000, 2000}};
    sum += writev(null, parts, 3);
    text[1000] = 0;
    char *arguments[] = {"long", text, text + 600, NULL};
    sum += execve("/nonexistent/program", arguments, NULL);
    printf("%ld %d\n", sum, memcmp(back, text, 1000));
}
