/* LIST: what is in a folder, by lstat; links are named, never followed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "sha256.h"

enum { STEP_ENTRIES = 128 };

struct listing {
    struct job job;
    struct bytes prefix; /* of paths, up to the folder on top of the stack */
    struct bytes batch;
    DIR *folders[DEPTH_MAX];
    size_t prefixes[DEPTH_MAX]; /* the prefix's length above each */
    size_t depth;
    int64_t room;
    int64_t bytes_room;
    size_t batched;
    int hashed; /* the file whose digest is being taken; -1: none */
    struct sha256 hash;
    struct stat found;
    char name[NAME_MAX + 1]; /* of the entry that `found` and `hash` are about */
};

void entry_put(struct bytes *to, struct span prefix, struct span name, const struct stat *found, const uint8_t *digest)
{
    size_t mark = put_begin(to, K_ENTRY), path = put_begin(to, K_PATH);
    bytes_put(to, prefix.data, prefix.length);
    bytes_put(to, name.data, name.length);
    put_end(to, path);
    const char *kind = S_ISREG(found->st_mode) ? "f" : S_ISDIR(found->st_mode) ? "d" : S_ISLNK(found->st_mode) ? "l" : "o";
    put_text(to, K_KIND, kind);
    put_number(to, K_SIZE, found->st_size);
    put_number(to, K_MODE, found->st_mode & 07777);
    put_number(to, K_MTIME_NS, (int64_t)found->st_mtim.tv_sec * 1000000000 + found->st_mtim.tv_nsec);
    if (digest)
        put_bytes(to, K_SHA256, digest, SHA256_BYTES);
    put_end(to, mark);
}

static void listing_release(struct job *job)
{
    struct listing *listing = (struct listing *)job;
    while (listing->depth)
        closedir(listing->folders[--listing->depth]);
    if (listing->hashed >= 0)
        close(listing->hashed);
    listing->hashed = -1;
    bytes_free(&listing->prefix);
    bytes_free(&listing->batch);
}

static void send_batch(struct listing *listing)
{
    send_frame(listing->job.task.connection, ENTRIES, listing->job.task.channel,
               (struct span){bytes_head(&listing->batch), listing->batch.length});
    bytes_take(&listing->batch, listing->batch.length);
    listing->batched = 0;
}

static bool listing_fail(struct listing *listing, int number, const char *why)
{
    return job_fail(&listing->job, number, why, (struct span){0});
}

/* Goes into a folder; its name is already at the prefix's end. */
static bool descend(struct listing *listing, int fd, size_t prefix_before)
{
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        int number = errno;
        if (fd >= 0)
            close(fd);
        return listing_fail(listing, number, NULL);
    }
    listing->prefixes[listing->depth] = prefix_before;
    listing->folders[listing->depth++] = folder;
    return true;
}

/* The entry that was looked at. False: the request is over. */
static bool add_entry(struct listing *listing, const uint8_t *digest)
{
    size_t before = listing->batch.length;
    if (--listing->room < 0)
        return listing_fail(listing, EOVERFLOW, "more entries than the caller allows");
    entry_put(&listing->batch, (struct span){bytes_head(&listing->prefix), listing->prefix.length},
              span_of(listing->name), &listing->found, digest);
    listing->bytes_room -= (int64_t)(listing->batch.length - before);
    listing->batched++;
    if (listing->batch.failed)
        return listing_fail(listing, ENOMEM, NULL);
    if (listing->bytes_room < 0)
        return listing_fail(listing, EOVERFLOW, "more bytes of entries than the caller allows");
    if (!(listing->job.flags & F_RECURSIVE) || !S_ISDIR(listing->found.st_mode))
        return true;
    if (listing->depth == DEPTH_MAX)
        return listing_fail(listing, EOVERFLOW, "folders nested too deep");
    int parent = dirfd(listing->folders[listing->depth - 1]);
    size_t prefix_before = listing->prefix.length;
    bytes_put(&listing->prefix, listing->name, strlen(listing->name));
    bytes_put(&listing->prefix, "/", 1);
    if (listing->prefix.failed)
        return listing_fail(listing, ENOMEM, NULL);
    return descend(listing, open_folder(parent, listing->name, O_NOFOLLOW), prefix_before);
}

/* A file that cannot be read, or is no longer what it was, is an entry without a digest. */
static bool begin_digest(struct listing *listing)
{
    int parent = dirfd(listing->folders[listing->depth - 1]);
    int fd = openat(parent, listing->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    uint64_t size;
    uint32_t mode;
    int number = fd < 0 ? errno : check_regular(fd, &size, &mode);
    if (number == 0) {
        listing->hashed = fd;
        sha256_begin(&listing->hash);
        return true;
    }
    if (fd >= 0)
        close(fd);
    return number == EISDIR || number == EINVAL ? listing_fail(listing, number, "not a regular file")
                                                : add_entry(listing, NULL);
}

static bool digest_step(struct listing *listing)
{
    uint8_t piece[CHUNK], digest[SHA256_BYTES];
    for (int round = 0; round < FILE_CHUNK / CHUNK; round++) {
        ssize_t length = read(listing->hashed, piece, sizeof piece);
        if (length > 0) {
            sha256_put(&listing->hash, piece, (size_t)length);
            continue;
        }
        int number = errno;
        close(listing->hashed);
        listing->hashed = -1;
        if (length < 0)
            return listing_fail(listing, number, NULL);
        sha256_end(&listing->hash, digest);
        return add_entry(listing, digest);
    }
    return true;
}

static bool next_entry(struct listing *listing)
{
    DIR *folder = listing->folders[listing->depth - 1];
    errno = 0;
    struct dirent *entry = readdir(folder);
    if (!entry) {
        if (errno)
            return listing_fail(listing, errno, NULL);
        closedir(folder);
        listing->depth--;
        bytes_cut(&listing->prefix, listing->prefixes[listing->depth]);
        return true;
    }
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
        return true;
    if (fstatat(dirfd(folder), entry->d_name, &listing->found, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT || listing_fail(listing, errno, NULL); /* gone meanwhile */
    strncpy(listing->name, entry->d_name, NAME_MAX);
    if (listing->job.flags & F_DIGESTS && S_ISREG(listing->found.st_mode))
        return begin_digest(listing);
    return add_entry(listing, NULL);
}

static bool listing_step(struct job *job)
{
    struct listing *listing = (struct listing *)job;
    for (int round = 0; round < STEP_ENTRIES; round++) {
        if (listing->hashed >= 0)
            return digest_step(listing);
        if (listing->batched >= STEP_ENTRIES || listing->batch.length >= BATCH_MAX) {
            send_batch(listing);
            return true;
        }
        if (listing->depth == 0) {
            send_batch(listing);
            return job_done(job, -1);
        }
        if (!next_entry(listing))
            return false;
    }
    return true;
}

bool list_start(struct connection *connection, uint32_t channel, struct span payload)
{
    struct span given;
    int64_t flags, entries, length;
    if (!fields_text(payload, K_PATH, &given) || given.length == 0 || !fields_number(payload, K_FLAGS, 0, &flags) ||
        !fields_number(payload, K_ENTRIES_MAX, 0, &entries) ||
        !fields_number(payload, K_LENGTH, (int64_t)1 << 62, &length))
        return false;
    char *path = absolute(connection->agent, given);
    int root = path ? open_at(path, O_DIRECTORY, !(flags & F_NOFOLLOW)) : -1, number = path ? errno : ENOMEM;
    free(path);
    if (root < 0) {
        send_failure(connection, channel, number, NULL, (struct span){0});
        return true;
    }
    struct listing *listing = job_new(connection, channel, payload, sizeof *listing);
    if (!listing) {
        close(root);
        return true;
    }
    listing->job.step = listing_step;
    listing->job.release = listing_release;
    listing->hashed = -1;
    listing->room = entries;
    listing->bytes_room = length;
    if (!span_is(given, ".")) {
        size_t size = given.length;
        while (size && given.data[size - 1] == '/')
            size--;
        bytes_put(&listing->prefix, given.data, size);
        bytes_put(&listing->prefix, "/", 1);
    }
    if (!descend(listing, root, 0))
        task_abandon(&listing->job.task);
    return true;
}
