/* What one core can do with memory: read four arrays, write two of them; as the server does with weights, momentum and
 * two gradients. Built and called by server_bandwidth.py. */
#include <stddef.h>

void mix(float *restrict weights, float *restrict momentum, const float *restrict first, const float *restrict second,
         size_t elements) {
  for (size_t i = 0; i < elements; i++) {
    float gradient = (first[i] + second[i]) * 0.5f;
    momentum[i] = 0.9f * momentum[i] + gradient;
    weights[i] -= 0.001f * momentum[i];
  }
}
