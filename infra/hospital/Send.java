import ca.uhn.hl7v2.DefaultHapiContext;
import ca.uhn.hl7v2.HapiContext;
import ca.uhn.hl7v2.app.Connection;
import ca.uhn.hl7v2.model.Message;
import ca.uhn.hl7v2.util.StandardSocketFactory;
import ca.uhn.hl7v2.util.Terser;
import java.io.ByteArrayInputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * Sends HL7 v2 messages by HAPI over MLLP and TLS, and prints each acknowledgement: code, control id, reason.
 *
 * <p>Send HOST PORT CERT KEY CA < messages. Segments are lines, and an empty line ends a message. HAPI parses
 * each message by the standard's structures before it is sent.
 */
public final class Send {
    private Send() {}

    public static void main(String[] args) throws Exception {
        SSLContext tls = tls(Path.of(args[2]), Path.of(args[3]), Path.of(args[4]));
        try (HapiContext context = new DefaultHapiContext()) {
            context.setSocketFactory(
                    new StandardSocketFactory() {
                        @Override
                        public Socket createTlsSocket() throws java.io.IOException {
                            return tls.getSocketFactory().createSocket();
                        }
                    });
            Connection connection = context.newClient(args[0], Integer.parseInt(args[1]), true);
            String all = new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
            for (String text : all.split("\n\n")) {
                Message message = context.getPipeParser().parse(text.strip().replace('\n', '\r') + "\r");
                Terser answer = new Terser(connection.getInitiator().sendAndReceive(message));
                String reason = answer.get("/ERR-8");
                System.out.println(
                        answer.get("/MSA-1") + " " + answer.get("/MSA-2") + " " + (reason == null ? "" : reason));
            }
            connection.close();
        }
    }

    private static SSLContext tls(Path cert, Path key, Path ca) throws Exception {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        Collection<? extends Certificate> chain =
                factory.generateCertificates(new ByteArrayInputStream(Files.readAllBytes(cert)));
        String pem = Files.readString(key).replaceAll("-----[A-Z ]+-----", "").replaceAll("\\s", "");
        PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem));
        KeyStore own = KeyStore.getInstance("PKCS12");
        own.load(null, null);
        own.setKeyEntry(
                "own", KeyFactory.getInstance("EC").generatePrivate(encoded), new char[0], chain.toArray(new Certificate[0]));
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        int number = 0;
        for (Certificate it : factory.generateCertificates(new ByteArrayInputStream(Files.readAllBytes(ca)))) {
            trusted.setCertificateEntry("ca" + number++, it);
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(own, new char[0]);
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }
}
