/* Stands where an interpreter stands: `forks.py`, listening at `socket` beside it, runs in its place.

   It hands over its streams, folder, words and environment, and ends as the process there ends. When
   it is killed, so is that process: its end of the connection closes.
*/

#define _GNU_SOURCE
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BROKEN = 70 };

static void put(int connection, const char *data, size_t size) {
    while (size > 0) {
        ssize_t sent = send(connection, data, size, MSG_NOSIGNAL);
        if (sent <= 0)
            _exit(BROKEN);
        data += sent;
        size -= (size_t)sent;
    }
}

static void put_words(int connection, char **words) {
    uint32_t size = 0;
    for (char **word = words; *word; word++)
        size += strlen(*word) + 1;
    put(connection, (char *)&size, sizeof size);
    for (; *words; words++)
        put(connection, *words, strlen(*words) + 1);
}

int main(int argc, char **argv, char **environment) {
    (void)argc;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ssize_t size = readlink("/proc/self/exe", address.sun_path, sizeof address.sun_path);
    char *name = size > 0 ? memrchr(address.sun_path, '/', (size_t)size) : NULL;
    if (!name || name + sizeof "/socket" > address.sun_path + sizeof address.sun_path)
        return BROKEN;
    strcpy(name, "/socket");
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, (struct sockaddr *)&address, sizeof address))
        return BROKEN;

    int streams[3] = {0, 1, 2};
    union {
        char space[CMSG_SPACE(sizeof streams)];
        struct cmsghdr aligned;
    } control = {0};
    char byte = 0;
    struct iovec content = {&byte, 1};
    struct msghdr message = {.msg_iov = &content, .msg_iovlen = 1};
    message.msg_control = control.space;
    message.msg_controllen = sizeof control.space;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof streams);
    memcpy(CMSG_DATA(rights), streams, sizeof streams);
    if (sendmsg(connection, &message, MSG_NOSIGNAL) != 1)
        return BROKEN;
    char folder[PATH_MAX];
    if (!getcwd(folder, sizeof folder))
        return BROKEN;
    char *place[] = {folder, NULL};
    put_words(connection, place);
    put_words(connection, argv + 1);
    put_words(connection, environment);
    /* Nobody may wait for an end of these streams that is only open here. */
    for (int stream = 0; stream < 3; stream++)
        close(stream);

    int32_t status;
    if (recv(connection, &status, sizeof status, MSG_WAITALL) != sizeof status)
        return BROKEN;
    if (WIFSIGNALED(status)) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : BROKEN;
}
