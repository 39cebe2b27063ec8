/* A load generator for Modbus/TCP servers: one request in flight on each connection, the next as soon as it is answered.
 *
 *   server_load PORT CONNECTIONS SECONDS REPLY_BYTES REQUEST...
 *
 * REQUEST is a whole frame in hexadecimal; several take turns. The first two bytes, the transaction id, are set here.
 * An answer counts if its length, transaction id and function code are what they should be; anything else ends the
 * program. Prints: answers, seconds, and the 50th and 99th hundredth of the time to an answer in microseconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_MAX = 260, REQUESTS_MAX = 8, CONNECTIONS_MAX = 256, US_MAX = 2000000 };

static uint8_t requests[REQUESTS_MAX][FRAME_MAX];
static int sizes[REQUESTS_MAX];
static uint32_t taken_us[US_MAX + 1];

struct connection {
    int socket, got;
    unsigned asked;
    double at_s;
    uint8_t reply[FRAME_MAX];
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *why) {
    fprintf(stderr, "server_load: %s\n", why);
    exit(1);
}

static int parse(const char *hex, uint8_t *frame) {
    int size = strlen(hex) / 2;
    if (size < 8 || size > FRAME_MAX) fail("a request is 8 to 260 bytes");
    for (int i = 0; i < size; i++) sscanf(hex + 2 * i, "%2hhx", &frame[i]);
    return size;
}

static void ask(struct connection *c, int kinds) {
    uint8_t frame[FRAME_MAX];
    int kind = ++c->asked % kinds;
    memcpy(frame, requests[kind], sizes[kind]);
    frame[0] = c->asked >> 8;
    frame[1] = c->asked;
    c->got = 0;
    c->at_s = now_s();
    if (send(c->socket, frame, sizes[kind], 0) != sizes[kind]) fail("cannot send");
}

static void check(const struct connection *c, int kinds) {
    int id = c->reply[0] << 8 | c->reply[1];
    if (id != (int)(c->asked & 0xFFFF)) fail("an answer has another request's transaction id");
    if (c->reply[7] != requests[c->asked % kinds][7]) fail("an answer has another function code, or is an exception");
}

static double percentile(uint64_t answers, double share) {
    uint64_t seen = 0;
    for (int us = 0; us <= US_MAX; us++)
        if ((seen += taken_us[us]) >= share * answers) return us;
    return US_MAX;
}

int main(int argc, char **argv) {
    if (argc < 6) fail("PORT CONNECTIONS SECONDS REPLY_BYTES REQUEST...");
    int connections = atoi(argv[2]), reply_bytes = atoi(argv[4]), kinds = argc - 5;
    double seconds = atof(argv[3]);
    if (connections < 1 || connections > CONNECTIONS_MAX || kinds > REQUESTS_MAX) fail("too many");
    if (reply_bytes < 8 || reply_bytes > FRAME_MAX) fail("an answer is 8 to 260 bytes");
    for (int i = 0; i < kinds; i++) sizes[i] = parse(argv[5 + i], requests[i]);

    static struct connection all[CONNECTIONS_MAX];
    int poll = epoll_create1(0), one = 1;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < connections; i++) {
        struct connection *c = &all[i];
        c->socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->socket, (struct sockaddr *)&where, sizeof where)) fail("cannot connect");
        setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &wanted);
    }

    uint64_t answers = 0;
    double from_s = now_s(), until_s = from_s + seconds, at_s = from_s;
    for (int i = 0; i < connections; i++) ask(&all[i], kinds);
    while (at_s < until_s) {
        struct epoll_event ready[CONNECTIONS_MAX];
        int count = epoll_wait(poll, ready, connections, 5000);
        if (count == 0) fail("no answer for five seconds");
        for (int i = 0; i < count; i++) {
            struct connection *c = ready[i].data.ptr;
            int more = recv(c->socket, c->reply + c->got, reply_bytes - c->got, 0);
            if (more <= 0) fail("the connection has ended");
            c->got += more;
            if (c->got >= 9 && c->reply[7] & 0x80) fail("an exception");
            if (c->got < reply_bytes) continue;
            check(c, kinds);
            at_s = now_s();
            int us = (at_s - c->at_s) * 1e6;
            taken_us[us < US_MAX ? us : US_MAX]++;
            answers++;
            ask(c, kinds);
        }
    }
    for (int i = 0; i < connections; i++) { /* leave nobody with half an answer */
        struct connection *c = &all[i];
        while (c->got < reply_bytes) {
            int more = recv(c->socket, c->reply + c->got, reply_bytes - c->got, 0);
            if (more <= 0) break;
            c->got += more;
        }
        close(c->socket);
    }
    printf("%llu %.6f %.0f %.0f\n", (unsigned long long)answers, at_s - from_s, percentile(answers, 0.50),
           percentile(answers, 0.99));
    return 0;
}
