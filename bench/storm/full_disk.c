/* Preloaded into a run: a disk that takes no more, at a file that the environment names.

   FULL_DISK_AT=GLOB      files (by path) whose write fails; empty: none
   FULL_DISK_AFTER=N      that many writes of such files succeed first
   FULL_DISK_BELOW=DIR    the disk: FULL_DISK_SEEN and FULL_DISK_ALL are about what is below it
   FULL_DISK_ALL=1        from the first failure on every write below DIR fails, in all processes of the run
   FULL_DISK_ERROR=E      ENOSPC (28) fails while bytes are written, after half of them; others fail as files are opened.
                          With FULL_DISK_ALL the folder DIR changes then: EROFS (30) nothing is written, made, named or
                          removed any more; EACCES (13) nothing but what is open already is written
   FULL_DISK_SAID=FILE    has the path that failed, once something has
   FULL_DISK_SEEN=FILE    paths below DIR that were written, a line for each write */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int calls;

static const char *given(const char *name) { const char *value = getenv(name); return value && *value ? value : NULL; }

static int wanted_error(void) { const char *text = given("FULL_DISK_ERROR"); return text ? atoi(text) : ENOSPC; }

static void note(const char *file, const char *text) {
    int to = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (to < 0) return;
    char line[4200];
    int size = snprintf(line, sizeof line, "%s\n", text);
    syscall(SYS_write, to, line, size);
    syscall(SYS_close, to);
}

static int below_disk(const char *path) {
    const char *below = given("FULL_DISK_BELOW");
    return below && !strncmp(path, below, strlen(below));
}

/* Whether the folder takes no change any more. */
static int frozen(const char *path) {
    const char *said = given("FULL_DISK_SAID");
    return given("FULL_DISK_ALL") && wanted_error() != ENOSPC && said && below_disk(path) && !access(said, F_OK);
}

/* 1 at the first failure, 2 at later ones, 0 where it works. */
static int fails(const char *path) {
    const char *at = given("FULL_DISK_AT");
    const char *said = given("FULL_DISK_SAID"), *seen = given("FULL_DISK_SEEN"), *after = given("FULL_DISK_AFTER");
    if (seen && below_disk(path)) note(seen, path);
    if (!at || !said) return 0;
    if (given("FULL_DISK_ALL") && below_disk(path) && !access(said, F_OK)) return 2;
    if (fnmatch(at, path, 0)) return 0;
    if (__sync_add_and_fetch(&calls, 1) <= (after ? atoi(after) : 0)) return 0;
    int first = access(said, F_OK) != 0;
    if (first) note(said, path);
    return first ? 1 : 2;
}

static int fails_fd(int fd) {
    if (!given("FULL_DISK_SEEN") && !given("FULL_DISK_AT")) return 0;
    if (wanted_error() != ENOSPC && !given("FULL_DISK_SEEN") && !given("FULL_DISK_ALL")) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0 || path[0] != '/') return 0;
    path[size] = 0;
    int how = fails(path);
    if (wanted_error() == ENOSPC) return how;
    return how && wanted_error() == EROFS ? 2 : 0;  /* who may not open files any more still writes what is open */
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL do { errno = wanted_error(); return -1; } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    int how = fails_fd(fd);
    if (how == 1 && size > 1) return NEXT(write)(fd, data, size / 2);
    if (how) FAIL;
    return NEXT(write)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) { if (fails_fd(fd)) FAIL; return NEXT(writev)(fd, parts, count); }

ssize_t pwrite(int fd, const void *data, size_t size, off_t to) {
    int how = fails_fd(fd);
    if (how == 1 && size > 1) return NEXT(pwrite)(fd, data, size / 2, to);
    if (how) FAIL;
    return NEXT(pwrite)(fd, data, size, to);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t to) {
    int how = fails_fd(fd);
    if (how == 1 && size > 1) return NEXT(pwrite64)(fd, data, size / 2, to);
    if (how) FAIL;
    return NEXT(pwrite64)(fd, data, size, to);
}

ssize_t sendfile64(int out, int in, off64_t *from, size_t size) {
    static ssize_t (*next)(int, int, off64_t *, size_t);
    if (!next) next = dlsym(RTLD_NEXT, "sendfile64");
    if (fails_fd(out)) FAIL;
    return next(out, in, from, size);
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    if (fails_fd(out)) FAIL;
    return NEXT(copy_file_range)(in, from, out, to, size, flags);
}

static int cannot_open(const char *path, int flags) {
    if (!given("FULL_DISK_AT") || wanted_error() == ENOSPC) return 0;
    if (given("FULL_DISK_ALL")) return (flags & (O_WRONLY | O_RDWR | O_CREAT)) && frozen(path);
    return (flags & (O_WRONLY | O_RDWR | O_CREAT)) && fails(path);
}

#define OPEN(name, ...)                                                                                       \
    mode_t mode = 0;                                                                                                 \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
    if (cannot_open(path, flags)) FAIL;                                                                              \
    return NEXT(name)(__VA_ARGS__, mode);

int open(const char *path, int flags, ...) { OPEN(open, path, flags) }
int open64(const char *path, int flags, ...) { OPEN(open64, path, flags) }
int openat(int at, const char *path, int flags, ...) { OPEN(openat, at, path, flags) }
int openat64(int at, const char *path, int flags, ...) { OPEN(openat64, at, path, flags) }

int mkdir(const char *path, mode_t mode) { if (frozen(path)) FAIL; return NEXT(mkdir)(path, mode); }
int rmdir(const char *path) { if (frozen(path)) FAIL; return NEXT(rmdir)(path); }
int unlink(const char *path) { if (frozen(path)) FAIL; return NEXT(unlink)(path); }
int rename(const char *from, const char *to) { if (frozen(from) || frozen(to)) FAIL; return NEXT(rename)(from, to); }

int unlinkat(int at, const char *path, int flags) {
    char link[64], whole[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t size = path[0] == '/' ? 0 : readlink(link, whole, sizeof whole - 1);
    whole[size > 0 ? size : 0] = 0;
    if (frozen(size > 0 ? whole : path)) FAIL;
    return NEXT(unlinkat)(at, path, flags);
}
