/*
 * A long way between two network devices (TUN) that it makes, for a kernel without netem: passes
 * packets on in both directions, each so late, and loses some. A full queue loses packets too.
 * Usage: longpath DEVICE DEVICE DELAY_MS LOSS_PERCENT
 */
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define QUEUE 16384
#define TURN 64

struct packet { int64_t due; ssize_t size; char data[1600]; };
struct way { int from, to; unsigned head, tail; struct packet *queue; };

static int64_t delay;
static double loss;

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int device(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) {
        perror(name);
        exit(1);
    }
    return fd;
}

static void take(struct way *way) {
    for (int i = 0; i < TURN; i++) {
        struct packet *packet = &way->queue[way->tail % QUEUE];
        packet->size = read(way->from, packet->data, sizeof packet->data);
        if (packet->size <= 0) return;
        packet->due = nanoseconds() + delay;
        if (drand48() >= loss && way->tail - way->head < QUEUE - 1) way->tail++;
    }
}

/* Passes on what is due; returns when the next packet is, as seen from now. */
static int64_t pass(struct way *way) {
    for (int i = 0; way->head != way->tail; i++) {
        struct packet *packet = &way->queue[way->head % QUEUE];
        int64_t left = packet->due - nanoseconds();
        if (left > 0) return left;
        if (i == TURN) return 0;
        if (write(way->to, packet->data, packet->size) < 0) perror("longpath");
        way->head++;
    }
    return 1000000000;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int near = device(argv[1]), far = device(argv[2]);
    delay = atof(argv[3]) * 1e6;
    loss = atof(argv[4]) / 100;
    struct way ways[] = {{near, far, 0, 0, calloc(QUEUE, sizeof(struct packet))},
                         {far, near, 0, 0, calloc(QUEUE, sizeof(struct packet))}};
    struct pollfd polled[] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
    prctl(PR_SET_TIMERSLACK, 1);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t there = pass(&ways[0]), back = pass(&ways[1]);
        int64_t left = there < back ? there : back;
        struct timespec wait = {left / 1000000000, left % 1000000000};
        if (ppoll(polled, 2, &wait, NULL) < 0) return 1;
        for (int i = 0; i < 2; i++)
            if (polled[i].revents & POLLIN) take(&ways[i]);
    }
}
