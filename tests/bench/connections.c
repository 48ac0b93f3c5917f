/*
 * Opens connections, so many at once, each with a handshake, 64 bytes there and back, and a close.
 * Usage: connections HOST PORT TARGET_PORT SECONDS AT_ONCE [USER PASSWORD]; without a user it goes
 * straight to the target. Prints how many were served and how many failed, the seconds this took,
 * and the latency's 50th and 99th percentile in microseconds, from the connect to the 64th byte.
 * Source and target addresses take turns, so that ports in TIME_WAIT never run out.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
#define LATENCIES_MAX 4000000
#define ADDRESSES 200

enum step { GREETING, PASSWORD, REQUEST, PAYLOAD, STEPS };

struct slot { int fd, step; size_t got; unsigned char in[64]; long long start; };

static struct sockaddr_in server;
static unsigned char messages[STEPS][520];
static size_t sizes[STEPS] = {3, 0, 10, 64};
static int first = PAYLOAD, epoll, turn;
static long served, failed, *latencies;

static long long microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void begin(struct slot *slot) {
    int on = 1;
    struct sockaddr_in source = {.sin_family = AF_INET};
    source.sin_addr.s_addr = htonl(0x7f000100 + 1 + turn++ % ADDRESSES);
    slot->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    slot->step = first - 1;
    slot->got = 0;
    slot->start = microseconds();
    setsockopt(slot->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(slot->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(slot->fd, (struct sockaddr *)&source, sizeof source)
        || (connect(slot->fd, (struct sockaddr *)&server, sizeof server) && errno != EINPROGRESS)) {
        perror("connections");
        exit(1);
    }
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = slot};
    epoll_ctl(epoll, EPOLL_CTL_ADD, slot->fd, &event);
}

static void again(struct slot *slot, int good) {
    if (good && served < LATENCIES_MAX) latencies[served++] = microseconds() - slot->start;
    failed += !good;
    close(slot->fd);
    begin(slot);
}

/* How many bytes the answer of this step has, as far as can be told by now. */
static size_t expected(const struct slot *slot) {
    if (slot->step == PAYLOAD) return 64;
    if (slot->step != REQUEST) return 2;
    return slot->got > 3 && slot->in[3] == 4 ? 22 : 10;
}

static int is_good(const struct slot *slot) {
    if (slot->step == GREETING) return slot->in[1] == 2;
    return slot->step == PAYLOAD || slot->in[1] == 0;
}

static int say(struct slot *slot) {
    unsigned char *message = messages[++slot->step];
    if (slot->step == REQUEST) message[7] = 2 + turn % ADDRESSES;
    slot->got = 0;
    return send(slot->fd, message, sizes[slot->step], MSG_NOSIGNAL) == (ssize_t)sizes[slot->step];
}

static void go_on(struct slot *slot, unsigned events) {
    if (events & EPOLLOUT) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = slot};
        epoll_ctl(epoll, EPOLL_CTL_MOD, slot->fd, &event);
        if (!say(slot)) again(slot, 0);
        return;
    }
    ssize_t size = recv(slot->fd, slot->in + slot->got, expected(slot) - slot->got, 0);
    if (size < 0 && errno == EAGAIN) return;
    slot->got += size > 0 ? size : 0;
    if (size <= 0) again(slot, 0);
    else if (slot->got < expected(slot)) return;
    else if (slot->step == PAYLOAD) again(slot, 1);
    else if (!is_good(slot) || !say(slot)) again(slot, 0);
}

static void prepare(const char *user, const char *password, int target_port) {
    unsigned char *end = messages[PASSWORD];
    first = GREETING;
    memcpy(messages[GREETING], "\5\1\2", 3);
    *end++ = 1;
    *end++ = strlen(user);
    end = (unsigned char *)stpcpy((char *)end, user);
    *end++ = strlen(password);
    end = (unsigned char *)stpcpy((char *)end, password);
    sizes[PASSWORD] = end - messages[PASSWORD];
    memcpy(messages[REQUEST], "\5\1\0\1\177\0\0", 7);
    messages[REQUEST][8] = target_port >> 8;
    messages[REQUEST][9] = target_port;
}

static int ascending(const void *a, const void *b) {
    return (*(long *)a > *(long *)b) - (*(long *)a < *(long *)b);
}

int main(int argc, char **argv) {
    if (argc != 6 && (argc != 8 || strlen(argv[6]) > 255 || strlen(argv[7]) > 255)) return 2;
    int at_once = atoi(argv[5]);
    struct slot *slots = calloc(at_once, sizeof *slots);
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &server.sin_addr);
    if (argc == 8) prepare(argv[6], argv[7], atoi(argv[3]));
    latencies = malloc(LATENCIES_MAX * sizeof *latencies);
    epoll = epoll_create1(0);
    long long start = microseconds(), end = start + (long long)(atof(argv[4]) * 1e6);
    for (int i = 0; i < at_once; i++) begin(&slots[i]);
    struct epoll_event ready[256];
    while (microseconds() < end) {
        int count = epoll_wait(epoll, ready, 256, 10);
        for (int i = 0; i < count; i++) go_on(ready[i].data.ptr, ready[i].events);
    }
    double seconds = (microseconds() - start) / 1e6;
    qsort(latencies, served, sizeof *latencies, ascending);
    printf("%ld %ld %.6f %ld %ld\n", served, failed, seconds,
           served ? latencies[served / 2] : 0, served ? latencies[served * 99 / 100] : 0);
    return 0;
}
