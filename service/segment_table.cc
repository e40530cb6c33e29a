// SPDX-License-Identifier: Apache-2.0

#include "service/segment_table.h"

#include <algorithm>
#include <utility>

namespace torpor::service {

void SegmentTable::Offer(const std::string& nonce,
                         const std::shared_ptr<ServerSegment>& segment,
                         Clock::time_point due) {
  MutexLock lock(&mu_);
  Entry& entry = entries_[nonce];
  entry.owner = segment;
  entry.due = due;
}

std::shared_ptr<ServerSegment> SegmentTable::Take(const std::string& nonce) {
  std::shared_ptr<ServerSegment> owner;
  MutexLock lock(&mu_);
  const auto it = entries_.find(nonce);
  if (it == entries_.end() || it->second.taken ||
      Clock::now() >= it->second.due) {
    return nullptr;
  }
  owner = it->second.owner.lock();
  if (owner != nullptr) it->second.taken = true;
  return owner;
}

SegmentTable::State SegmentTable::Look(const std::string& nonce) const {
  MutexLock lock(&mu_);
  const auto it = entries_.find(nonce);
  if (it == entries_.end()) return State::kGone;
  const Entry& entry = it->second;
  if (entry.owned) return State::kOwned;
  if (entry.kept) return State::kKept;
  return entry.memory != nullptr ? State::kUntilClosed : State::kGone;
}

std::shared_ptr<ServerSegment> SegmentTable::Drop(const std::string& nonce) {
  std::shared_ptr<ServerSegment> owner;
  std::shared_ptr<ChargedSegment> freed;
  MutexLock lock(&mu_);
  const auto it = entries_.find(nonce);
  if (it == entries_.end()) return nullptr;
  owner = it->second.owner.lock();
  freed = std::move(it->second.memory);
  entries_.erase(it);
  return owner;
}

void SegmentTable::Free(const std::string& nonce,
                        std::shared_ptr<ChargedSegment> memory, bool keep,
                        Clock::time_point due) {
  MutexLock lock(&mu_);
  const auto it = entries_.find(nonce);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  if (!entry.taken) {
    entries_.erase(it);
    return;
  }
  entry.owned = false;
  entry.kept = keep;
  entry.due = due;
  if (keep || memory->segment->outlives_owner()) {
    entry.memory = std::move(memory);
  }
}

std::shared_ptr<ServerSegment> SegmentTable::Reuse(
    const std::string& nonce, Flow flow, uint64_t bytes,
    const std::function<
        std::shared_ptr<ServerSegment>(std::shared_ptr<ChargedSegment>)>& own) {
  MutexLock lock(&mu_);
  const auto it = entries_.find(nonce);
  if (it == entries_.end() || !it->second.kept) return nullptr;
  Entry& entry = it->second;
  if (entry.memory->flow != flow || entry.memory->segment->bytes() < bytes) {
    return nullptr;
  }
  std::shared_ptr<ServerSegment> owner = own(std::move(entry.memory));
  entry.owner = owner;
  entry.owned = true;
  entry.kept = false;
  return owner;
}

bool SegmentTable::EvictKept(const std::string& rather) {
  std::shared_ptr<ChargedSegment> freed;
  MutexLock lock(&mu_);
  Entry* first = nullptr;
  for (auto& [nonce, entry] : entries_) {
    if (!entry.kept) continue;
    if (first == nullptr || nonce == rather || entry.due < first->due) {
      first = &entry;
    }
    if (nonce == rather) break;
  }
  if (first == nullptr) return false;
  freed = std::move(first->memory);
  first->kept = false;
  return true;
}

SegmentTable::Clock::time_point SegmentTable::Due(
    Clock::time_point latest) const {
  MutexLock lock(&mu_);
  for (const auto& [nonce, entry] : entries_) {
    if (!entry.taken || entry.kept) latest = std::min(latest, entry.due);
  }
  return latest;
}

std::vector<std::shared_ptr<ServerSegment>> SegmentTable::Expire(
    Clock::time_point now) {
  std::vector<std::shared_ptr<ServerSegment>> untaken;
  std::vector<std::shared_ptr<ChargedSegment>> freed;
  MutexLock lock(&mu_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    if (entry.kept && now >= entry.due) {
      // Its connection is closed next, and drops the entry.
      freed.push_back(std::move(entry.memory));
      entry.kept = false;
    }
    if (entry.taken || now < entry.due) {
      ++it;
      continue;
    }
    if (auto owner = entry.owner.lock()) untaken.push_back(std::move(owner));
    it = entries_.erase(it);
  }
  return untaken;
}

void SegmentTable::Clear() {
  std::map<std::string, Entry> freed;
  MutexLock lock(&mu_);
  freed.swap(entries_);
}

}  // namespace torpor::service
