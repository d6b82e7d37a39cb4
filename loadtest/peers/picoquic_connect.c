/* picoquic_connect - a client of a CONNECT proxy on another implementation of multipath QUIC.
 *
 *   picoquic_connect PROXY PORT NAME CERT KEY CA TO BYTES [ADDRESS/INDEX]...
 *
 * PROXY and PORT are the proxy's address, NAME is in its certificate. TO, "host:port", must echo a
 * TCP connection. BYTES go there and back at the same time, over one stream. Each ADDRESS of this
 * machine, on the device of that INDEX, is one more path.
 *
 * It compares every byte that comes back, and prints what each path carried. Exit code 0: all came
 * back equal. 1: anything else.
 *
 * It needs the library picoquic (its public interface only); HTTP/3 is written here.
 */
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <picoquic.h>
#include <picoquic_packet_loop.h>

#define PATHS_MAX 4
/* Payload bytes of one DATA frame; its header has five bytes. */
#define FRAME_BYTES 65536
#define HEADER_MAX 300
/* Bytes that the proxy may send unread. */
#define WINDOW_BYTES (16 << 20)
/* Microseconds without an arrival after which the exchange has failed. */
#define SILENCE_MAX 20000000

typedef struct {
    struct sockaddr_storage address;
    int device;
    int opened, error;
} way_t;

typedef struct {
    picoquic_cnx_t *connection;
    struct sockaddr_storage proxy;
    uint16_t port;
    way_t ways[PATHS_MAX];
    int ways_count;
    uint64_t total;
    /* Sending: a pending header, then payload of a frame. */
    uint8_t header[HEADER_MAX];
    size_t header_length, header_at;
    uint64_t frame_left, sent;
    /* Receiving: the header of a frame byte by byte, then its payload. */
    uint8_t head[16];
    size_t head_length;
    uint64_t left, type, received;
    uint8_t section[4];
    size_t section_at;
    int accepted, finished, failed, ended;
    uint64_t began_us, heard_us, ended_us;
} exchange_t;

/* The byte at an offset of the noise, by SplitMix64. */
static uint8_t noise(uint64_t offset)
{
    uint64_t z = (offset >> 3) * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x1234567);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return (uint8_t)(z >> (8 * (offset & 7)));
}

static int fail(exchange_t *x, const char *why)
{
    if (!x->failed) {
        fprintf(stderr, "picoquic_connect: %s\n", why);
    }
    x->failed = x->ended = 1;
    return 0;
}

/* RFC 9114, 4.4: CONNECT has only a method and an authority. */
static int put_request(exchange_t *x, const char *to)
{
    size_t length = strlen(to), at = 0;
    if (length == 0 || length >= 127) {
        return -1;
    }
    uint8_t section = (uint8_t)(2 + 1 + 2 + length);
    x->header[at++] = 0x01; /* HEADERS */
    x->header[at++] = 0x40;
    x->header[at++] = section;
    x->header[at++] = 0; /* no dynamic table (RFC 9204, 4.5.1) */
    x->header[at++] = 0;
    x->header[at++] = 0xc0 | 15; /* :method CONNECT */
    x->header[at++] = 0x50;      /* :authority */
    x->header[at++] = (uint8_t)length;
    memcpy(x->header + at, to, length);
    x->header_length = at + length;
    return 0;
}

static void begin_frame(exchange_t *x)
{
    uint64_t rest = x->total - x->sent;
    uint32_t length = rest < FRAME_BYTES ? (uint32_t)rest : FRAME_BYTES;
    x->header[0] = 0x00; /* DATA */
    for (int at = 0; at < 4; at++) {
        x->header[1 + at] = (uint8_t)(length >> (24 - 8 * at));
    }
    x->header[1] |= 0x80;
    x->header_at = 0;
    x->header_length = 5;
    x->frame_left = length;
}

static int send_more(exchange_t *x, void *context, size_t room)
{
    /* What there is to send, up to the room: at most one further header in each frame. */
    uint64_t left = x->header_length - x->header_at + x->frame_left;
    uint64_t rest = x->total - x->sent - x->frame_left;
    left += rest + 5 * ((rest + FRAME_BYTES - 1) / FRAME_BYTES);
    size_t length = left < room ? (size_t)left : room;
    int last = length == left;
    uint8_t *to = picoquic_provide_stream_data_buffer(context, length, last, !last);
    if (to == NULL) {
        return fail(x, "no buffer to send from");
    }
    for (size_t at = 0; at < length; at++) {
        if (x->header_at == x->header_length && x->frame_left == 0) {
            begin_frame(x);
        }
        if (x->header_at < x->header_length) {
            to[at] = x->header[x->header_at++];
        } else {
            to[at] = noise(x->sent++);
            x->frame_left--;
        }
    }
    return 0;
}

/* Reads a variable-length integer (RFC 9000, 16); 0 if it is not complete. */
static size_t varint(const uint8_t *bytes, size_t length, uint64_t *value)
{
    size_t size = length > 0 ? (size_t)1 << (bytes[0] >> 6) : 1;
    if (length < size) {
        return 0;
    }
    *value = bytes[0] & 0x3f;
    for (size_t at = 1; at < size; at++) {
        *value = *value << 8 | bytes[at];
    }
    return size;
}

static int take(exchange_t *x, const uint8_t *bytes, size_t length)
{
    for (size_t at = 0; at < length; at++) {
        if (x->left == 0) {
            uint64_t payload;
            x->head[x->head_length++] = bytes[at];
            size_t used = varint(x->head, x->head_length, &x->type);
            size_t more = used ? varint(x->head + used, x->head_length - used, &payload) : 0;
            if (more != 0) {
                x->left = payload;
                x->head_length = x->section_at = 0;
            }
            continue;
        }
        x->left--;
        if (x->type == 0x01 && !x->accepted) {
            if (x->section_at < sizeof x->section) {
                x->section[x->section_at++] = bytes[at];
            }
            /* :status 200 of the static table. */
            if (x->left == 0) {
                if (x->section_at < 3 || x->section[2] != (0xc0 | 25)) {
                    return fail(x, "the proxy refused the request");
                }
                x->accepted = 1;
            }
        } else if (x->type == 0x00) {
            if (!x->accepted || bytes[at] != noise(x->received)) {
                return fail(x, "a byte that came back differs");
            }
            x->received++;
        }
    }
    return 0;
}

static int on_stream(picoquic_cnx_t *connection, uint64_t stream, uint8_t *bytes, size_t length,
    picoquic_call_back_event_t event, void *context, void *stream_context)
{
    exchange_t *x = context;
    (void)stream_context;
    switch (event) {
    case picoquic_callback_ready: {
        /* The control stream, with no setting (RFC 9114, 6.2.1). */
        static const uint8_t settings[] = { 0x00, 0x04, 0x00 };
        picoquic_add_to_stream(connection, picoquic_get_next_local_stream_id(connection, 1), settings, sizeof settings, 0);
        x->began_us = picoquic_get_quic_time(picoquic_get_quic_ctx(connection));
        picoquic_mark_active_stream(connection, 0, 1, NULL);
        return 0;
    }
    case picoquic_callback_prepare_to_send:
        return send_more(x, bytes, length);
    case picoquic_callback_stream_data:
    case picoquic_callback_stream_fin:
        if (stream != 0) {
            return 0; /* settings, and tables of QPACK, which stay empty */
        }
        take(x, bytes, length);
        if (event == picoquic_callback_stream_fin && !x->ended) {
            x->finished = x->ended = 1;
        }
        return 0;
    case picoquic_callback_stream_reset:
    case picoquic_callback_stop_sending:
        return fail(x, "the stream was reset");
    case picoquic_callback_close:
    case picoquic_callback_application_close:
    case picoquic_callback_stateless_reset:
        x->ended = 1;
        if (!x->finished) {
            fprintf(stderr, "picoquic_connect: closed, errors 0x%" PRIx64 " there, 0x%" PRIx64 " here\n",
                picoquic_get_remote_error(connection), picoquic_get_local_error(connection));
            x->failed = 1;
        }
        return 0;
    default:
        return 0;
    }
}

static void open_paths(exchange_t *x, uint64_t now)
{
    for (int at = 0; at < x->ways_count; at++) {
        way_t *way = &x->ways[at];
        if (way->opened) {
            continue;
        }
        ((struct sockaddr_in *)&way->address)->sin_port = x->port;
        way->error = picoquic_probe_new_path_ex(x->connection, (struct sockaddr *)&x->proxy,
            (struct sockaddr *)&way->address, way->device, now, 0);
        way->opened = way->error == 0;
    }
}

static int on_loop(picoquic_quic_t *quic, picoquic_packet_loop_cb_enum event, void *context, void *argument)
{
    exchange_t *x = context;
    uint64_t now = picoquic_get_quic_time(quic);
    if (event == picoquic_packet_loop_port_update) {
        x->port = ((struct sockaddr_in *)argument)->sin_port;
    } else if (event == picoquic_packet_loop_after_receive) {
        x->heard_us = now;
        /* Earlier the library opens a path before either end has the other's connection ids. */
        if (x->received > 0) {
            open_paths(x, now);
        }
    }
    if (x->heard_us == 0) {
        x->heard_us = now;
    }
    if (now > x->heard_us + SILENCE_MAX) {
        fail(x, "nothing arrives");
    }
    if (x->ended) {
        x->ended_us = now;
        return PICOQUIC_NO_ERROR_TERMINATE_PACKET_LOOP;
    }
    return 0;
}

static int read_arguments(exchange_t *x, int count, char **words)
{
    struct sockaddr_in *proxy = (struct sockaddr_in *)&x->proxy;
    proxy->sin_family = AF_INET;
    proxy->sin_port = htons((uint16_t)atoi(words[2]));
    x->total = strtoull(words[8], NULL, 10);
    if (inet_pton(AF_INET, words[1], &proxy->sin_addr) != 1 || x->total == 0 || count - 9 > PATHS_MAX) {
        return -1;
    }
    for (int at = 9; at < count; at++) {
        way_t *way = &x->ways[x->ways_count++];
        struct sockaddr_in *address = (struct sockaddr_in *)&way->address;
        char *slash = strchr(words[at], '/');
        if (slash == NULL) {
            return -1;
        }
        *slash = 0;
        way->device = atoi(slash + 1);
        address->sin_family = AF_INET;
        if (inet_pton(AF_INET, words[at], &address->sin_addr) != 1) {
            return -1;
        }
    }
    return put_request(x, words[7]);
}

int main(int count, char **words)
{
    static exchange_t x;
    if (count < 9 || read_arguments(&x, count, words) != 0) {
        fprintf(stderr, "picoquic_connect PROXY PORT NAME CERT KEY CA TO BYTES [ADDRESS/INDEX]...\n");
        return 1;
    }
    picoquic_register_all_congestion_control_algorithms();
    uint64_t now = picoquic_current_time();
    picoquic_quic_t *quic = picoquic_create(1, words[4], words[5], words[6], "h3", NULL, NULL, NULL,
        NULL, NULL, now, NULL, NULL, NULL, 0);
    if (quic == NULL) {
        fprintf(stderr, "picoquic_connect: the certificate, its key or the authority cannot be read\n");
        return 1;
    }
    picoquic_set_default_congestion_algorithm_by_name(quic, "bbr");
    picoquic_set_default_multipath_option(quic, 1);
    picoquic_set_default_tp_value(quic, picoquic_tp_initial_max_data, WINDOW_BYTES);
    x.connection = picoquic_create_cnx(quic, picoquic_null_connection_id, picoquic_null_connection_id,
        (struct sockaddr *)&x.proxy, now, 0, words[3], "h3", 1);
    picoquic_set_callback(x.connection, on_stream, &x);
    picoquic_packet_loop_param_t loop = { 0 };
    loop.local_af = AF_INET;
    if (picoquic_start_client_cnx(x.connection) != 0 || picoquic_packet_loop_v2(quic, &loop, on_loop, &x) != 0) {
        x.failed = 1;
    }
    int equal = x.finished && !x.failed && x.received == x.total;
    double seconds = x.began_us != 0 ? (double)(x.ended_us - x.began_us + 1) / 1e6 : 1;
    printf("%" PRIu64 " bytes sent, %" PRIu64 " came back equal, in %.2f s: %.1f Mbit/s each way\n",
        x.sent, x.received, seconds, (double)x.received * 8 / 1e6 / seconds);
    for (uint64_t id = 0; id <= PATHS_MAX; id++) {
        picoquic_path_quality_t quality;
        if (picoquic_get_path_quality(x.connection, id, &quality) == 0) {
            printf("path %" PRIu64 ": sent %" PRIu64 ", received %" PRIu64 ", lost packets %" PRIu64 ", rtt %" PRIu64 " us\n",
                id, quality.bytes_sent, quality.bytes_received, quality.lost, quality.rtt);
        }
    }
    for (int at = 0; at < x.ways_count; at++) {
        if (!x.ways[at].opened) {
            fprintf(stderr, "picoquic_connect: path %d was not opened: %d\n", at + 1, x.ways[at].error);
            equal = 0;
        }
    }
    picoquic_free(quic);
    return equal ? 0 : 1;
}
