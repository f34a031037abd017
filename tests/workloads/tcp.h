/* TCP over loopback between the native programs of one workload, who find one another by a name in the workload's folder. */
#include <arpa/inet.h>
#include <netinet/tcp.h>

static inline void tcp_at_once(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static inline int tcp_connected(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    require(!connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
    tcp_at_once(fd);
    return fd;
}

/* A listening socket on a free port, which the file NAME holds from then on. */
static inline int tcp_listening(const char *name) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char draft[64], path[4096];
    require(!bind(fd, (struct sockaddr *)&address, length) && !listen(fd, 64), name);
    getsockname(fd, (struct sockaddr *)&address, &length);
    snprintf(draft, sizeof draft, "%s.part", name);
    snprintf(path, sizeof path, "%s", in_folder(draft));
    FILE *file = fopen(path, "w");
    require(file && fprintf(file, "%d", ntohs(address.sin_port)) > 0 && !fclose(file), path);
    require(!rename(path, in_folder(name)), path);
    return fd;
}

static inline int tcp_accepted(int listener) {
    int fd = accept(listener, NULL, NULL);
    require(fd >= 0, "accept");
    tcp_at_once(fd);
    return fd;
}

/* A connection to who listens as NAME, as soon as somebody does. */
static inline int tcp_connected_to(const char *name) {
    int port = 0;
    FILE *file;
    while (!(file = fopen(in_folder(name), "r"))) sleep_ms(20);
    require(fscanf(file, "%d", &port) == 1 && !fclose(file), name);
    return tcp_connected(port);
}
