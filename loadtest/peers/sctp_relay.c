/* sctp_relay - carries local byte streams over one SCTP association, with concurrent multipath
 * transfer where that is asked for.
 *
 *   sctp_relay accept  LOCAL MULTIPATH SEND_BYTES RECEIVE_BYTES OWN...
 *   sctp_relay connect LOCAL MULTIPATH SEND_BYTES RECEIVE_BYTES OWN... -- PEER
 *
 * LOCAL is the path of a Unix socket. `connect` listens there and gives each connection a stream of
 * the association. `accept` connects there once for each stream that the peer begins. OWN are this
 * end's addresses, PEER is one of the other's. MULTIPATH is 0 or 1, the sizes are of the
 * association's buffers.
 *
 * It prints "ready" when it listens (accept) or when the association is up (connect), and ends with
 * it. SCTP is the library usrsctp, in UDP as of RFC 6951. Settings are those of the paper on
 * latency-sensitive applications: bursts of four packets, buffers split between paths, NewReno on
 * each path, no wait for full packets.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <usrsctp.h>

#define UDP_PORT 9899
#define SCTP_PORT 5202
#define ADDRESSES_MAX 8
/* Streams of one association; a page takes six. */
#define STREAMS_MAX 64
/* With the headers of IP, UDP and SCTP a message fills a packet of 1500 bytes. */
#define MESSAGE_BYTES_MAX 1444
#define BURST_PACKETS 4
#define SPLIT_BOTH_BUFFERS 3
enum { DATA = 1, END = 2 };

typedef struct {
    uint16_t number;
    int local;
    struct socket *association;
} stream_t;

static stream_t streams[STREAMS_MAX];

static void die(const char *what)
{
    fprintf(stderr, "sctp_relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_un local_name(const char *path)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    if (strlen(path) >= sizeof(name.sun_path)) {
        errno = ENAMETOOLONG;
        die(path);
    }
    strcpy(name.sun_path, path);
    return name;
}

static struct sockaddr_in address_of(const char *text)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(SCTP_PORT) };
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
        errno = EINVAL;
        die(text);
    }
    return address;
}

static void send_message(const stream_t *stream, uint32_t kind, const void *data, size_t bytes)
{
    struct sctp_sndinfo info = { .snd_sid = stream->number, .snd_ppid = htonl(kind) };
    if (usrsctp_sendv(stream->association, data, bytes, NULL, 0, &info, sizeof(info),
                      SCTP_SENDV_SNDINFO, 0) < 0)
        die("sending");
}

/* Reads the local connection to its end. Blocks while the association's send buffer is full. */
static void *from_local(void *given)
{
    const stream_t *stream = given;
    char buffer[MESSAGE_BYTES_MAX];
    ssize_t bytes;
    while ((bytes = read(stream->local, buffer, sizeof(buffer))) > 0)
        send_message(stream, DATA, buffer, (size_t)bytes);
    send_message(stream, END, "", 1);
    return NULL;
}

static void begin(uint16_t number, int local, struct socket *association)
{
    pthread_t thread;
    streams[number] = (stream_t) { number, local, association };
    if ((errno = pthread_create(&thread, NULL, from_local, &streams[number])) != 0)
        die("starting a thread");
    pthread_detach(thread);
}

static void begin_here(uint16_t number, const char *path, struct socket *association)
{
    struct sockaddr_un name = local_name(path);
    int local = socket(AF_UNIX, SOCK_STREAM, 0);
    if (local < 0 || connect(local, (struct sockaddr *)&name, sizeof(name)) != 0)
        die(path);
    begin(number, local, association);
}

static void to_local(int local, const char *data, size_t bytes)
{
    while (bytes > 0) {
        /* A reader that has left is no error: it has all that it wanted. */
        ssize_t written = send(local, data, bytes, MSG_NOSIGNAL);
        if (written <= 0)
            return;
        data += written;
        bytes -= (size_t)written;
    }
}

/* Hands over what arrives until the association ends. `path` is where a new stream is announced;
 * NULL where only this end begins streams. */
static void receive(struct socket *association, const char *path)
{
    char buffer[1 << 16];
    for (;;) {
        struct sctp_rcvinfo info;
        struct sockaddr_in from;
        socklen_t from_bytes = sizeof(from), info_bytes = sizeof(info);
        unsigned int kind = 0;
        int flags = 0;
        ssize_t bytes = usrsctp_recvv(association, buffer, sizeof(buffer), (struct sockaddr *)&from,
                                      &from_bytes, &info, &info_bytes, &kind, &flags);
        if (bytes <= 0)
            return;
        if ((flags & MSG_NOTIFICATION) || kind != SCTP_RECVV_RCVINFO || info.rcv_sid >= STREAMS_MAX)
            continue;
        if (streams[info.rcv_sid].association == NULL) {
            if (path == NULL)
                continue;
            begin_here(info.rcv_sid, path, association);
        }
        if (ntohl(info.rcv_ppid) == END)
            shutdown(streams[info.rcv_sid].local, SHUT_WR);
        else
            to_local(streams[info.rcv_sid].local, buffer, (size_t)bytes);
    }
}

static void set(struct socket *association, int level, int option, const void *value, socklen_t bytes)
{
    if (usrsctp_setsockopt(association, level, option, value, bytes) != 0)
        die("setting an option");
}

static struct socket *association_of(int send_bytes, int receive_bytes, char **own, int own_count)
{
    struct sockaddr_in addresses[ADDRESSES_MAX];
    struct sctp_udpencaps in_udp = { .sue_port = htons(UDP_PORT) };
    int on = 1;
    struct socket *association = usrsctp_socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
    if (association == NULL)
        die("a socket");
    in_udp.sue_address.ss_family = AF_INET;
    set(association, IPPROTO_SCTP, SCTP_REMOTE_UDP_ENCAPS_PORT, &in_udp, sizeof(in_udp));
    set(association, IPPROTO_SCTP, SCTP_NODELAY, &on, sizeof(on));
    set(association, IPPROTO_SCTP, SCTP_RECVRCVINFO, &on, sizeof(on));
    set(association, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes));
    set(association, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    for (int at = 0; at < own_count; at++)
        addresses[at] = address_of(own[at]);
    if (usrsctp_bindx(association, (struct sockaddr *)addresses, own_count, SCTP_BINDX_ADD_ADDR) != 0)
        die("binding the addresses");
    return association;
}

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

static void *accept_local(void *given)
{
    struct { const char *path; struct socket *association; } *to = given;
    struct sockaddr_un name = local_name(to->path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&name, sizeof(name)) != 0 ||
        listen(listener, STREAMS_MAX) != 0)
        die(to->path);
    ready();
    for (uint16_t number = 0; number < STREAMS_MAX; number++) {
        int local = accept(listener, NULL, NULL);
        if (local < 0)
            die("accepting");
        begin(number, local, to->association);
    }
    return NULL;
}

int main(int count, char **given)
{
    if (count < 7)
        goto usage;
    int accepts = strcmp(given[1], "accept") == 0;
    if (!accepts && strcmp(given[1], "connect") != 0)
        goto usage;
    int multipath = atoi(given[3]), send_bytes = atoi(given[4]), receive_bytes = atoi(given[5]);
    int own_count = count - 6 - (accepts ? 0 : 2);
    if (own_count < 1 || own_count > ADDRESSES_MAX || multipath < 0 || multipath > 1 ||
        send_bytes <= 0 || receive_bytes <= 0 || (!accepts && strcmp(given[count - 2], "--") != 0))
        goto usage;

    usrsctp_init(UDP_PORT, NULL, NULL);
    usrsctp_sysctl_set_sctp_cmt_on_off((uint32_t)multipath);
    usrsctp_sysctl_set_sctp_cmt_use_dac((uint32_t)multipath);
    usrsctp_sysctl_set_sctp_buffer_splitting(multipath ? SPLIT_BOTH_BUFFERS : 0);
    usrsctp_sysctl_set_sctp_max_burst_default(BURST_PACKETS);
    usrsctp_sysctl_set_sctp_nr_outgoing_streams_default(STREAMS_MAX);

    struct socket *association = association_of(send_bytes, receive_bytes, given + 6, own_count);
    if (accepts) {
        if (usrsctp_listen(association, 1) != 0)
            die("listening");
        ready();
        struct socket *accepted = usrsctp_accept(association, NULL, NULL);
        if (accepted == NULL)
            die("accepting");
        receive(accepted, given[2]);
        return 0;
    }
    struct sockaddr_in peer = address_of(given[count - 1]);
    if (usrsctp_connect(association, (struct sockaddr *)&peer, sizeof(peer)) != 0)
        die("connecting");
    struct { const char *path; struct socket *association; } to = { given[2], association };
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, accept_local, &to)) != 0)
        die("starting a thread");
    receive(association, NULL);
    return 0;

usage:
    fprintf(stderr, "usage: sctp_relay accept|connect LOCAL MULTIPATH SEND_BYTES RECEIVE_BYTES OWN... [-- PEER]\n");
    return 2;
}
