#include "verbs.h"

namespace embermesh {

inline void EraseVerb::find(std::size_t /*half*/, const Run& run, std::span<const Entry> entries,
                            std::size_t /*first*/) noexcept {
  for (const Entry& entry : entries) {
    const Slot slot = run.store->find(entry.table(), entry.hash());
    if (!slot) continue;
    run.store->erase(slot);
    context_.life(entry).erased(entry.table(), entry.hash());
    ++removed_;
  }
}

void EraseVerb::run(const UnitSource& source, LockWindow& locks) {
  run_pipeline(*this, context_.partitions(), source, locks);
}

}  // namespace embermesh
