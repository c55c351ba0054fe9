/* Makes and connects sockets, and waits after each call until the file in argv[1] shows it. With a second argument,
   also sockets of IPv6. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *shown;
static int number;

static int wait_shown(int result)
{
    char name[64];
    snprintf(name, sizeof name, "/nonexistent/%d.", ++number);
    (void)!chdir(name);
    for (int round = 0; round < 10000; round++) {
        static char text[1 << 20];
        int fd = open(shown, O_RDONLY | O_CLOEXEC);
        ssize_t len = read(fd, text, sizeof text - 1);
        syscall(SYS_close_range, fd, fd, 0);
        text[len < 0 ? 0 : len] = 0;
        if (strstr(text, name))
            return result;
        usleep(10000);
    }
    exit(9);
}

#define SHOWN(call) wait_shown(call)

static void connects(int family, struct sockaddr *address, socklen_t size)
{
    char buffer[8];
    int listener = SHOWN(socket(family, SOCK_STREAM, 0));
    SHOWN(bind(listener, address, size));
    SHOWN(listen(listener, 1));
    socklen_t len = size;
    SHOWN(getsockname(listener, address, &len));
    int client = SHOWN(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SHOWN(connect(client, address, size));
    int server = SHOWN(accept(listener, 0, 0));
    SHOWN(write(client, "to", 2));
    SHOWN(recv(server, buffer, sizeof buffer, 0));
    int copy = SHOWN(dup(server));
    SHOWN(close(server));
    struct pollfd ready = {.fd = copy, .events = POLLOUT};
    SHOWN(poll(&ready, 1, 1000));
    SHOWN(close(copy));
    SHOWN(close(client));
    SHOWN(close(listener));
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 1;
    shown = argv[1];
    char path[200], buffer[8];
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    connects(AF_INET, (struct sockaddr *)&four, sizeof four);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    if (argc > 2)
        connects(AF_INET6, (struct sockaddr *)&six, sizeof six);
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    snprintf(local.sun_path, sizeof local.sun_path, "socket \"%d\"", 7);
    unlink(local.sun_path);
    connects(AF_UNIX, (struct sockaddr *)&local, sizeof local);
    unlink(local.sun_path);
    memcpy(local.sun_path, "\0abstract", 10);
    int fd = SHOWN(socket(AF_UNIX, SOCK_DGRAM, 0));
    snprintf(path, sizeof path, "%d", getpid());
    strcpy(local.sun_path + 1, path);
    SHOWN(bind(fd, (struct sockaddr *)&local, 3 + strlen(path)));
    SHOWN(close(fd));

    int pair[2];
    SHOWN(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SHOWN(write(pair[0], "a", 1));
    if (fork() == 0) {
        SHOWN(recv(pair[1], buffer, 1, 0));
        _exit(0);
    }
    wait(0);
    /* The child has used the next one. */
    number++;
    SHOWN(close(pair[0]));
    SHOWN(close(pair[1]));

    four.sin_port = 0;
    int server = SHOWN(socket(AF_INET, SOCK_DGRAM, 0));
    SHOWN(bind(server, (struct sockaddr *)&four, sizeof four));
    socklen_t len = sizeof four;
    SHOWN(getsockname(server, (struct sockaddr *)&four, &len));
    int client = SHOWN(socket(AF_INET, SOCK_DGRAM, 0));
    SHOWN(connect(client, (struct sockaddr *)&four, sizeof four));
    SHOWN(write(client, "u", 1));
    SHOWN(close(client));
    SHOWN(close(server));

    struct sockaddr_nl netlink = {.nl_family = AF_NETLINK};
    fd = SHOWN(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
    SHOWN(bind(fd, (struct sockaddr *)&netlink, sizeof netlink));
    SHOWN(close(fd));
    fd = SHOWN(open("/dev/null", O_RDWR));
    SHOWN(write(fd, "n", 1));
    SHOWN(close(fd));
    SHOWN(pipe2(pair, 0));
    SHOWN(write(pair[1], "p", 1));
    SHOWN(close(pair[0]));
    SHOWN(close(pair[1]));
    fd = SHOWN(syscall(SYS_pidfd_open, getpid(), 0));
    SHOWN(close(fd));
    return 0;
}
