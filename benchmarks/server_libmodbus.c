/* A static block of registers served by libmodbus, for the benchmark: many connections, one thread, as in its own
 * example of many clients. Prints its port; ends when its standard input does.
 *
 *   server_libmodbus BASE COUNT
 */
#include <modbus/modbus.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    modbus_t *bus = modbus_new_tcp("127.0.0.1", 0);
    modbus_mapping_t *map = modbus_mapping_new_start_address(0, 0, 0, 0, atoi(argv[1]), atoi(argv[2]), 0, 0);
    int listener = modbus_tcp_listen(bus, 128), last = listener;
    if (map == NULL || listener < 0) return 1;
    struct sockaddr_in where;
    socklen_t size = sizeof where;
    getsockname(listener, (struct sockaddr *)&where, &size);
    printf("%d\n", ntohs(where.sin_port));
    fflush(stdout);

    fd_set all;
    FD_ZERO(&all);
    FD_SET(listener, &all);
    FD_SET(STDIN_FILENO, &all);
    for (;;) {
        fd_set ready = all;
        if (select(last + 1, &ready, NULL, NULL, NULL) < 0) return 1;
        if (FD_ISSET(STDIN_FILENO, &ready)) return 0;
        for (int each = 0; each <= last; each++) {
            if (!FD_ISSET(each, &ready)) continue;
            if (each == listener) {
                int client = accept(listener, NULL, NULL);
                if (client < 0) continue;
                FD_SET(client, &all);
                if (client > last) last = client;
                continue;
            }
            uint8_t request[MODBUS_TCP_MAX_ADU_LENGTH];
            modbus_set_socket(bus, each);
            int length = modbus_receive(bus, request);
            if (length > 0) {
                modbus_reply(bus, request, length, map);
            } else if (length < 0) {
                close(each);
                FD_CLR(each, &all);
            }
        }
    }
}
