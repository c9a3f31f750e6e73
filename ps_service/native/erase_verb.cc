#include "verbs.h"

namespace embermesh {

void EraseVerb::find(std::size_t /*lane*/, std::span<const Entry> entries,
                     std::size_t /*first*/) noexcept {
  for (const Entry& entry : entries) {
    RowStore& store = context_.store(entry);
    Slot* const slot = store.index(entry.table()).find(entry.hash());
    if (slot == nullptr) continue;
    store.erase(entry.table(), slot);
    context_.life(entry).erased(entry.table(), entry.hash());
    ++removed_;
  }
}

}  // namespace embermesh
