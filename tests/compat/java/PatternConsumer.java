import java.time.Duration;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Subscribes to a pattern that the server evaluates, and prints "topic value" of so many records.
 * Arguments: bootstrap servers, group, pattern, number of records, seconds at most.
 */
public class PatternConsumer {
    public static void main(String[] given) {
        Map<String, Object> configs = Map.of(
            "bootstrap.servers", given[0],
            "group.id", given[1],
            "group.protocol", "consumer",
            "auto.offset.reset", "earliest",
            "key.deserializer", StringDeserializer.class,
            "value.deserializer", StringDeserializer.class);
        int left = Integer.parseInt(given[3]);
        long until = System.nanoTime() + Long.parseLong(given[4]) * 1_000_000_000L;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(configs)) {
            consumer.subscribe(new SubscriptionPattern(given[2]));
            while (left > 0 && System.nanoTime() < until) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.topic() + " " + record.value());
                    left--;
                }
            }
        }
    }
}
