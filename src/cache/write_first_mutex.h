#ifndef SLACKWATER_CACHE_WRITE_FIRST_MUTEX_H_
#define SLACKWATER_CACHE_WRITE_FIRST_MUTEX_H_

#include <pthread.h>

namespace slackwater::cache {

// A shared mutex on which readers that come and go do not keep a writer waiting for ever: while one
// waits, no new reader enters. std::shared_mutex does not promise that, and the one of this system
// lets eight readers shut a writer out for good.
//
// Invariants:
//   I1  any number of readers, or one writer. Neither is re-entrant.
// Threads: any.
// Errors: none.
class WriteFirstMutex {
 public:
  WriteFirstMutex() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&mutex_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~WriteFirstMutex() { pthread_rwlock_destroy(&mutex_); }
  WriteFirstMutex(const WriteFirstMutex&) = delete;
  WriteFirstMutex& operator=(const WriteFirstMutex&) = delete;

  // As std::shared_mutex, so that its locks can be used.
  void lock() { pthread_rwlock_wrlock(&mutex_); }
  void unlock() { pthread_rwlock_unlock(&mutex_); }
  void lock_shared() { pthread_rwlock_rdlock(&mutex_); }
  void unlock_shared() { pthread_rwlock_unlock(&mutex_); }

 private:
  pthread_rwlock_t mutex_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_WRITE_FIRST_MUTEX_H_
