#include "slackwater/base/aligned_buffer.h"

#include <sys/mman.h>

namespace slackwater {

void advise_huge_pages(void* first_byte, std::size_t bytes) {
  // Advice: a kernel without transparent huge pages refuses it, and nothing is lost.
  static_cast<void>(::madvise(first_byte, bytes, MADV_HUGEPAGE));
}

}  // namespace slackwater
